"""Exit tables: one file per builder, plus counting and the rules that they share.

Every builder is a function from its inputs to a `Draft` of exit layers, which `ExitTable` validates. `vocabulary` is
about tokenizers, `counting` about corpora, `buckets` about layers, `storage` about files.
"""

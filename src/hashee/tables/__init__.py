"""The ways to build an exit table: one file each, plus counting and the rules that they share.

Every way is a function from what it needs to an order or a grouping of token ids; `ExitTable` turns that into
exit layers. `vocabulary` knows tokenizers, `counting` knows corpora, `buckets` knows layers, `storage` knows files.
"""

"""Side-by-side clocks: every way to run the same texts, each in its own process, in interleaved rounds.

Nothing is imported here: workers of baselines that need neither torch nor transformers must not pay for them.
"""

"""Faster embedders, rerankers and encoders without labels: `hashee.speedup`."""

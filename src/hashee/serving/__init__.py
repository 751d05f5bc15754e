"""Serving models over HTTP: requests are admitted and batched by what they will cost, which is known beforehand."""

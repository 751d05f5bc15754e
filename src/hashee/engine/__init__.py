"""The packed engine: plan, attention, blocks, kernels, and the padded reference that defines the truth."""

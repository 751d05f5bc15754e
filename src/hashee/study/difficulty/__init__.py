"""Can difficulty be learned? The paper's second section: sets of difficult instances, and what predicts them."""

"""Guards a run against spikes of the gradient, hung ranks and flipped bits (docs/resilience.md)."""

"""Makes steps of a run again in a temporary copy, to check a certificate or to explain a step."""

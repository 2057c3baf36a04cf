"""Makes the run that a run would be if documents had been left out of it from the beginning."""

"""Text in, text out: cleaning, sentences, filters, languages, signatures of near-duplicates. Pure functions."""

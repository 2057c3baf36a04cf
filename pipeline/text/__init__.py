"""Pure functions of text: cleaning, sentences, filters, languages, and comparison of texts."""

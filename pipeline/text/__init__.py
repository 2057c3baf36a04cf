"""Pure functions of text: cleaning, sentences, filters, languages, and what is like other text."""

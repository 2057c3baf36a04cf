"""Renders the HTML pages of the builder and the trainer: templates, style, and a chart."""

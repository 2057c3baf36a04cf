"""How pages of results look: templates, style, one chart, and text made safe. A leaf for both programs."""

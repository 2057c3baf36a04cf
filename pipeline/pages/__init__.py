"""How pages of both programs look: templates, style, one chart, and text made safe."""

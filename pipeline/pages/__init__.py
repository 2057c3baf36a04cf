"""How pages of results look: style, text made safe, cards. A leaf for both programs, standard library only."""

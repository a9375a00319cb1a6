"""The Textual console: screens, widgets, actions, themes, strings."""

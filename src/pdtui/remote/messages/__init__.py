"""What goes to an agent and comes from it: values only, by subject."""

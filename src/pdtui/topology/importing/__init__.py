"""From what runs or is written in scripts today to a topology file in which nothing is said twice."""

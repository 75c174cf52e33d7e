"""How fast the sink writes, and how fast questions are answered over a million trajectories."""

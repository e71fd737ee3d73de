"""Output for people and scripts: boxes, pictures, exports and errors."""

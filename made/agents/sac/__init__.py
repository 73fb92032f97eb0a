"""SAC from states and RAD (SAC with random crops) from pixels, for continuous control."""

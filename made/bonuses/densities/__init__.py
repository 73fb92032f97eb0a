"""TODO made/bonuses/densities."""

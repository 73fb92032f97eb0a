"""TODO made/bonuses/release."""

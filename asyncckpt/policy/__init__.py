"""When to save. Pure values, no clocks of their own. No torch."""

"""The hot tiers: durable rows that no lake version contains yet."""

"""Allocation: how a budget is split over layers and heads, in whole pairs that add up to it in the variant `paper`."""

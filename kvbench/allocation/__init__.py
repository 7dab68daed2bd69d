"""Allocation: how a budget is split over layers and heads, in whole pairs whose sum is exact."""

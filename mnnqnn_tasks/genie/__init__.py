"""Qualcomm's Genie runtime: graph names, the loader's rules, and what follows from them."""

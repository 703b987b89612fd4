"""Variables of functions: captured by address, or watched. Imports without torch."""

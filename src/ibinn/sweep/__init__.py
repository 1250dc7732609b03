"""Many runs from one experiment file, here or on a Ray cluster. Imports no torch."""

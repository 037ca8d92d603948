"""What is run where nobody chose: the same for the app and for every command."""

PRECISION = "auto"  # what the device computes in without emulating it: see `precision.chosen_precision`
# A pass is as wide as its proposal, as in the programs that tuned settings are pasted into; a pass of one fixed width
# (`invariant`) makes short proposals as expensive as long ones, so that on a CPU hardly any pair would pay.
PASS_MODE = "fast"

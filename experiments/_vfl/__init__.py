"""The studies of VFLRecon and VFLDefender."""

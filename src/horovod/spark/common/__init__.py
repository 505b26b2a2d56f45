"""The common part of the estimators of all frameworks."""

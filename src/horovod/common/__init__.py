"""The paths where code for earlier versions imports what all adapters share."""

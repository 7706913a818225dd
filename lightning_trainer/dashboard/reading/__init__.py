"""The pages' queries of a store, each on one snapshot; none of them reads the store's whole history."""

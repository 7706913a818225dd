"""The pages' queries of a store, each on one snapshot; none of them reads its whole history."""

"""Finite MDPs, exactly: the theory of Sections 2-4 and Appendices A and C, to be run and tested.

`mdp` and `families` hold the MDPs, `solve` plans and visitation densities, `objective` the regularized objective,
`algorithm1` Algorithm 1 and Theorem 1, `policy_gradient` the methods of Section 4.2. Use float64 (`jax.enable_x64`)
where bounds and gradients are compared to many digits.
"""

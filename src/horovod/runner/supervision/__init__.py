"""Watches over a job from its start to its exit code.

supervisor    the launcher's loop: relays, and does what a policy decides
events        pure: what can happen to a job, what can be done, what a policy is
fixed         pure: the policy of a job that fails with its first rank
elastic       pure: the policy of a job whose hosts and workers come and go
outcome       how a job ended
history       a sequence that only grows, for the states of policies
link          the launcher's end of one agent
connect_back  pure: which address of the launcher all hosts reach
gathering     pure: which hosts are ready or failed, and whether to go on
failure       pure: which of several failures was the first; greetings, what does not explain one
early_exit    a rank that ends before it joins the others
startup       says who was late, if starting takes long
summary       pure: what became of the ranks of a job that failed
"""

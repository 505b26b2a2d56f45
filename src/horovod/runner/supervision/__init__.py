"""Watches over a job from its start to its exit code: events → policy → commands → executor.

supervisor       the loop: takes events, asks the policy, has its commands carried out
events           pure: what can happen to a job
commands         pure: what can be done about it
policy           pure: what a policy is
fixed            pure: the policy of a job that fails with its first rank
elastic          pure: the policy of a job whose hosts and workers come and go
stopping         pure: the end of any job
readiness        pure: which hosts are ready or failed, and where all reach the store
agent_executor   carries out commands by agents
agents           how agents are started, and who hears of what they report
store_commands   carries out commands for the store, for every executor
relay            hands on what ranks print
link             the launcher's end of one agent
news, sources    events of other threads: discovery, and what workers say
outcome          how a job ended
failure          pure: which of several failures was the first; greetings, what does not explain one
early_exit       a rank that ends before it joins the others
startup          says who was late, if starting takes long
slow_workers     pure: which ranks make the others wait; slow_worker_watch asks them
silence          pure: which members show no sign of life
summary          pure: what became of the ranks of a job that failed
"""

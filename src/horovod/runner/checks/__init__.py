"""Examines hosts before a job: ``--check`` and ``--check-build``.

check_build  what this installation can work with
check_hosts  ``--check``; preflight asks the hosts, probe answers there with facts, and
             preflight_report makes a table and advice of it
run_on       carries question and answer between this host and another
"""

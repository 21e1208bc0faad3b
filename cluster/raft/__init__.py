"""Raft on the log: one member of a group, without network and threads.

::

    messages           what replicas send to each other, as values
    membership         voters and learners, as a value and as bytes
    journal            RaftJournal: pysyncobj's journal interface over ``ual.log.Log``
    pysyncobj_seam     pysyncobj's globals, transport and poller, replaced by ours
    member             RaftMember: pysyncobj with our protections; offers; transfer
    leadership         a leader's view of its peers: what each has and is sent next
    peers              progress of a peer, ballots, the leader's lease, staleness
    pre_vote           PreVote: would an election be won?
    reads              ReadRounds: linearizable reads
    catch_up           shipping snapshots to peers that are far behind, and fetching them
    state_comparison   replicas compare state hashes at equal indexes

Begin with ``messages``, ``journal``, ``member``. Messages leave through a ``send`` callback, so
this package imports nothing of ``cluster.transport``.
"""

/* Inboxes: push, claim, steal, give back, remove; kills before every store; burial by the parent.
 *
 * Each store to shared memory is one step, before which its process may be killed. Reads under a lock are
 * one step with what follows, since nobody else may change what is read. See README.md here, and
 * `mpsched/_deque/README.md`, Protocols.
 */

#ifndef KILLS
#define KILLS 2
#endif
#ifndef R
#define R 2      /* roots */
#endif
#define W 2      /* workers, each with an inbox */
#define S 2      /* slots of an inbox */
#define P 2      /* the parent, as a holder of locks */
#define NOBODY 9
#define TOMB 9

#define FREE 0
#define QUEUED(w) (1 + (w) * 8)
#define CLAIMED(w) (2 + (w) * 8)
#define RUNNING(w) (3 + (w) * 8)
#define TAKE(w) (1 + (w) * 8)
#define GIVE(w) (2 + (w) * 8)

/* shared memory */
byte head[W], tail[W], dirty[W], old[W], count[W];
byte slot[W * S];
byte state[R];
bool record[R];          /* in a result ring: the end of a run, read by the parent */
byte lock[W];            /* the kernel's */

/* the parent's own */
bool ready[R];           /* waits there to be pushed */
bool ended[R];           /* its future is final */

/* what only the check knows */
byte kills;
bool began[R], prevented[R];
bool alive[W];

#define SLOT(v, index) slot[(v) * S + ((index) % S)]
#define LENGTH(v) (tail[v] - head[v])
#define ALL_ENDED (ended[0] && ended[R - 1] && (R < 3 || ended[1]))

/* A store, before which a worker may be killed. */
#define STORE(what) \
	if \
	:: what \
	:: mortal && kills < KILLS -> kills++; goto dead \
	fi

#define UNLOCK(v) \
	if \
	:: atomic { lock[v] = NOBODY; forget(v) } \
	:: mortal && kills < KILLS -> kills++; goto dead \
	fi

/* What nobody will read again is forgotten, and indices stay small: fewer states, the same runs. */
inline forget(box) {
	d_step {
		if
		:: dirty[box] == 0 && lock[box] == NOBODY ->
			old[box] = 0; count[box] = 0;
			if
			:: head[box] >= 2 * S -> head[box] = head[box] - S; tail[box] = tail[box] - S
			:: else
			fi;
			k = tail[box];
			do
			:: k < head[box] + S -> SLOT(box, k) = 0; k++
			:: else -> break
			od;
			k = 0
		:: else
		fi
	}
}

#define LOCK(v, me) atomic { lock[v] == NOBODY -> lock[v] = me }

inline repair(box) {
	if
	:: dirty[box] == 0
	:: else ->
#ifndef NO_REPAIR
		if
		:: head[box] == old[box] ->
			if
			:: dirty[box] % 8 == 1 ->
				i = old[box];
				do
				:: i < old[box] + count[box] ->
					h = SLOT(box, i);
					if
					:: h != TOMB && state[h] == CLAIMED(dirty[box] / 8) -> STORE(state[h] = QUEUED(box))
					:: else
					fi;
					i++
				:: else -> break
				od
			:: else ->
				i = old[box] - count[box];
				do
				:: i < old[box] ->
					h = SLOT(box, i);
					if
					:: h != TOMB && state[h] == QUEUED(box) -> STORE(state[h] = CLAIMED(dirty[box] / 8))
					:: else
					fi;
					i++
				:: else -> break
				od
			fi
		:: else
		fi;
#endif
		STORE(dirty[box] = 0)
	fi
}

/* Up to two of inbox v for worker w; `mine[0 .. n)` are the handles. */
inline take(box, who) {
	d_step {
		at = head[box]; i = at;
		do :: i != tail[box] && SLOT(box, i) == TOMB -> i++ :: else -> break od;
		if :: i + limit < tail[box] -> span = i + limit - at :: else -> span = tail[box] - at fi;
		n = 0; i = at;
		do
		:: i < at + span ->
			if :: SLOT(box, i) != TOMB -> mine[n] = SLOT(box, i); n++ :: else fi;
			i++
		:: else -> break
		od;
		i = 0
	}
	if
	:: span == 0
	:: else ->
#ifndef NO_UNDO
		STORE(old[box] = at);
		STORE(count[box] = span);
		STORE(dirty[box] = TAKE(who));
#endif
#ifdef INDEX_FIRST
		STORE(head[box] = at + span);
#endif
		do
		:: i < n -> STORE(state[mine[i]] = CLAIMED(who)); i++
		:: else -> break
		od;
#ifndef INDEX_FIRST
		STORE(head[box] = at + span);
#endif
		STORE(dirty[box] = 0)
	fi;
	i = 0; span = 0; at = 0; limit = 0
}

/* What worker w has not started, the last of `mine`, back into its own inbox. */
inline give_back(who) {
	at = head[who];
	if
	:: tail[who] - at < S ->
		STORE(old[who] = at);
		STORE(count[who] = 1);
		STORE(SLOT(who, at - 1) = mine[n - 1]);
#ifdef GIVE_INDEX_FIRST
		STORE(head[who] = at - 1);
#endif
		STORE(dirty[who] = GIVE(who));
		STORE(state[mine[n - 1]] = QUEUED(who));
#ifndef GIVE_INDEX_FIRST
		STORE(head[who] = at - 1);
#endif
		STORE(dirty[who] = 0);
		n--
	:: else
	fi;
	at = 0
}

proctype Worker(byte w) {
	byte mine[S];
	byte n, i, h, at, span, limit, k;
	bool mortal = true;
begin:
	skip;
	do
	:: atomic { ALL_ENDED -> goto done }
	:: n == 0 && LENGTH(w) > 0 ->
		LOCK(w, w);
		repair(w);
		limit = 2;
		take(w, w);
		UNLOCK(w)
	:: n == 0 && LENGTH(1 - w) > 0 ->
#ifdef UNLOCKED_STEAL
		limit = 1;
		take((1 - w), w)
#else
		if
		:: atomic { lock[1 - w] == NOBODY -> lock[1 - w] = w };
			repair((1 - w));
			limit = 1;
			take((1 - w), w);
			UNLOCK(1 - w)
		:: atomic { lock[1 - w] != NOBODY -> skip }
		fi
#endif
	:: n == 2 ->
		/* the helper, behind a long root */
		LOCK(w, w);
		repair(w);
		give_back(w);
		UNLOCK(w)
	:: n > 0 ->
		d_step {
			h = mine[0]; mine[0] = mine[1]; mine[1] = 0; n--
		}
		STORE(atomic { state[h] = RUNNING(w); assert(!began[h] && !prevented[h]); began[h] = true });
		STORE(record[h] = true);
		h = 0
	od;
dead:
	skip;
	atomic {
		alive[w] = false;
#ifndef LOCK_KEPT
		if :: lock[0] == w -> lock[0] = NOBODY :: else fi;
		if :: lock[1] == w -> lock[1] = NOBODY :: else fi;
#endif
		mine[0] = 0; mine[1] = 0; n = 0; i = 0; h = 0; at = 0; span = 0; limit = 0;
		forget(0); forget(1)
	}
	/* A replacement. */
	if
	:: alive[w] -> goto begin
	:: ALL_ENDED
	fi;
done:
	skip
}

inline drain() {
	d_step {
		h = 0;
		do
		:: h < R ->
			if
			:: record[h] -> assert(!ended[h]); record[h] = false; ended[h] = true; state[h] = FREE
			:: else
			fi;
			h++
		:: else -> break
		od;
		h = 0
	}
}

inline bury(who) {
#ifndef NO_DRAIN
	drain();
#endif
#ifndef SCAN_FIRST
	v = 0;
	do
	:: v < W -> LOCK(v, P); repair(v); UNLOCK(v); v++
	:: else -> break
	od;
#endif
	h = 0;
	do
	:: h < R ->
		if
		:: state[h] == CLAIMED(who) -> STORE(atomic { state[h] = FREE; ready[h] = true })
		:: state[h] == RUNNING(who) -> STORE(atomic { state[h] = FREE; assert(!ended[h]); ended[h] = true })
		:: else
		fi;
		h++
	:: else -> break
	od;
	v = 0; h = 0;
	alive[who] = true
}

proctype Parent() {
	byte h, v, i, k;
	bool mortal = false;
	do
	:: atomic { ALL_ENDED -> break }
	:: record[0] || record[R - 1] || (R == 3 && record[1]) -> drain()
	:: !alive[0] -> bury(0)
	:: !alive[1] -> bury(1)
	:: ready[0] || ready[R - 1] || (R == 3 && ready[1]) ->
		atomic {
			if :: ready[0] -> h = 0 :: ready[1] -> h = 1 :: ready[R - 1] -> h = R - 1 fi;
			if :: lock[0] == NOBODY -> v = 0 :: lock[1] == NOBODY -> v = 1 fi;
			lock[v] = P
		}
		repair(v);
		atomic { if :: ready[0] -> h = 0 :: ready[1] -> h = 1 :: ready[R - 1] -> h = R - 1 fi }
		if
		:: LENGTH(v) < S ->
			ready[h] = false;
			state[h] = QUEUED(v);
			SLOT(v, tail[v]) = h;
			tail[v] = tail[v] + 1
		:: else
		fi;
		UNLOCK(v);
		v = 0; h = 0
	:: state[0] % 8 == 1 && !prevented[0] ->
		/* cancel root 0 */
		v = state[0] / 8;
		if
		:: v < W ->
			LOCK(v, P);
			repair(v);
			i = head[v];
			do
			:: i < tail[v] && SLOT(v, i) != 0 -> i++
			:: else -> break
			od;
			if
			:: i < tail[v] ->
				SLOT(v, i) = TOMB;
				atomic { prevented[0] = true; state[0] = FREE; ended[0] = true }
			:: else
			fi;
			UNLOCK(v)
		fi;
		v = 0; i = 0
	od;
	goto done;
dead:
	skip;
	assert(false);
done:
	skip
}

init {
	atomic {
		byte k = 0;
		do
		:: k < W ->
			head[k] = S; tail[k] = S; lock[k] = NOBODY; alive[k] = true; k++
		:: else -> break
		od;
		k = 0;
		do
		:: k < R -> ready[k] = true; k++
		:: else -> break
		od;
		run Worker(0); run Worker(1); run Parent()
	}
}

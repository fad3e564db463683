/* Children: publish, take back, steal, run, outcome; kills of home and thieves at every store; burial.
 *
 * Worker 0 is home: its task publishes two children and joins them. Workers 1 and 2 steal them; a child that they
 * run may publish one of its own (entry 2 or 3), which the other may steal. How a ring works is ring.pml's
 * affair: here it is a set, but one that a killed thief may leave half changed. Stores reach memory at once;
 * park.pml, want.pml and join.pml are about those that do not.
 * See README.md here, `mpsched/_deque/README.md`, Split deque, and `mpsched/_pool/README.md`, Trees.
 */

#ifndef KILLS
#define KILLS 1
#endif
#define W 3
#define H 4
#define P 3                  /* the parent, as a holder of locks */
#define NOBODY 9
#define HOME(h) ((h) < 2 -> 0 : (h) - 1)

#define FREE 0
#define QUEUED 1
#define CLAIMED(w) (2 + (w) * 16)
#define RUNNING(w) (3 + (w) * 16)
#define DONE 4
#define RETURNED 5
#define LOST 6
#define DYING(w) (7 + (w) * 16)
#define PHASE(h) (state[h] % 16)
#define OPEN(h) (PHASE(h) == 1 || PHASE(h) == 2 || PHASE(h) == 3 || PHASE(h) == 7)

/* shared memory */
byte state[H];
bool cancel[H], outcome[H];
bool root_cancel;
bool inring[H];
byte taking[W];              /* undo record of ring w: the handle, + 1 */
byte lock[W];
bool runs[W];                /* the RUN word: something of the root */
byte serial[H];              /* the ident */

/* what only the check knows, and the kernel */
byte kills;
byte busy[H];                /* 1 + the worker that is in a call of the child */
byte below[H];               /* of an entry 2 or 3: 1 + the child whose call published it */
bool alive[W], settled, over;

#define STORE(what) \
	if \
	:: what \
	:: kills < KILLS -> kills++; goto dead \
	fi

#define LOCK(v, me) atomic { lock[v] == NOBODY -> lock[v] = me }
#define UNLOCK(v) STORE(lock[v] = NOBODY)

/* The next holder's, in one step: ring.pml takes it apart. */
inline repair(box) {
	d_step {
		if
		:: taking[box] != 0 ->
#ifndef NO_REPAIR
			if
			:: inring[taking[box] - 1] && PHASE(taking[box] - 1) == 2 -> state[taking[box] - 1] = QUEUED
			:: else
			fi;
#endif
			taking[box] = 0
		:: else
		fi
	}
}

/* A call begins. */
inline call(h, w) {
	d_step {
		assert(busy[h] == 0);
		assert(!settled);
		/* TREES-3: nothing of an earlier call runs any more. */
		assert(!(below[2] == h + 1 && busy[2] != 0 && HOME(2) != w));
		assert(!(below[3] == h + 1 && busy[3] != 0 && HOME(3) != w));
		busy[h] = w + 1
	}
}

inline publish(h, w, parent) {
	serial[h] = serial[h] + 1;
	STORE(atomic { cancel[h] = false; outcome[h] = false; below[h] = parent });
#ifndef RING_FIRST
	STORE(state[h] = QUEUED);
#endif
	/* The store of TAIL, without the lock. */
	STORE(inring[h] = true);
#ifdef RING_FIRST
	STORE(state[h] = QUEUED)
#endif
}

/* Worker w, in a call, waits for its own child h, or calls it. */
inline join(h, w) {
	do
	:: PHASE(h) == 1 ->
#ifdef ENTRY_FIRST
		STORE(state[h] = FREE);
		LOCK(w, w);
		repair(w);
		STORE(inring[h] = false);
		UNLOCK(w);
		mine = true;
#else
		LOCK(w, w);
		repair(w);
		if
#ifdef NO_LOOK_UNDER_LOCK
		:: true
#else
		:: state[h] == QUEUED && inring[h]
#endif
			-> STORE(inring[h] = false); mine = true
		:: else
		fi;
		UNLOCK(w);
#endif
		if
		:: !mine ->
			/* Taken; or lost, and then it waits for ever. */
			(state[h] != QUEUED || inring[h])
		:: mine ->
			mine = false;
			STORE(state[h] = FREE);
			call(h, w);
			STORE(busy[h] = 0);
			break
		fi
	:: PHASE(h) == 5 || PHASE(h) == 6 ->
		/* RETURNED; LOST, of a root that has retries. */
		STORE(state[h] = FREE);
		call(h, w);
		STORE(busy[h] = 0);
		break
	:: PHASE(h) == 4 ->
		assert(outcome[h]);
		STORE(state[h] = FREE);
		break
	od
}

/* What death leaves: nothing runs here, and the kernel frees the locks. */
inline die(w) {
	d_step {
		h = 0;
		do
		:: h < H -> if :: busy[h] == w + 1 -> busy[h] = 0 :: else fi; h++
		:: else -> break
		od;
		h = 0;
#ifndef LOCK_KEPT
		do
		:: h < W -> if :: lock[h] == w -> lock[h] = NOBODY :: else fi; h++
		:: else -> break
		od;
#endif
		h = 0;
		alive[w] = false
	}
}

proctype Task() {
	byte h;
	bool mine;
	runs[0] = true;
	publish(0, 0, 0);
#ifdef SINGLE
	join(0, 0);
#else
	publish(1, 0, 0);
	if
	:: skip;
		join(1, 0);
		join(0, 0)
	:: skip;
		join(0, 0);
		join(1, 0)
	fi;
#endif
	STORE(atomic { over = true; runs[0] = false });
	goto done;
dead:
	skip;
	die(0);
done:
	skip
}

proctype Thief(byte w) {
	byte h, own, from;
	bool mine;
	own = w + 1;
begin:
	skip;
	do
	:: atomic { over || settled -> goto done }
	:: inring[0] || inring[1] || inring[5 - own] ->
		/* take */
		if
		:: atomic { inring[0] -> h = 0; from = 0 }
		:: atomic { inring[1] && !inring[0] -> h = 1; from = 0 }
		:: atomic { inring[5 - own] -> h = 5 - own; from = 3 - w }
		:: else -> goto begin
		fi;
		atomic {
			if
			:: lock[from] == NOBODY -> lock[from] = w
			:: else -> h = 0; from = 0; goto begin
			fi
		}
		repair(from);
		if
		:: inring[h] ->
#ifdef INDEX_FIRST
			STORE(inring[h] = false);
			STORE(state[h] = CLAIMED(w));
#else
			STORE(taking[from] = h + 1);
			STORE(state[h] = CLAIMED(w));
			STORE(inring[h] = false);
			STORE(taking[from] = 0);
#endif
			UNLOCK(from)
		:: else ->
			UNLOCK(from);
			h = 0; from = 0;
			goto begin
		fi;
		/* run */
#ifdef LOOKS_TOO_EARLY
		mine = cancel[h] || root_cancel;
		STORE(runs[w] = true);
#else
		STORE(runs[w] = true);
#ifdef DEAF_THIEF
		mine = false;
#else
		mine = cancel[h] || root_cancel;
#endif
#endif
		if
		:: mine ->
			mine = false;
			STORE(state[h] = RETURNED)
		:: else ->
			STORE(atomic { state[h] = RUNNING(w); call(h, w) });
			if
			:: h < 2 && (PHASE(own) == 4 || PHASE(own) == 5 || PHASE(own) == 6) && below[own] != h + 1 ->
				/* a predecessor's */
				STORE(state[own] = FREE)
			:: else
			fi;
			if
#ifndef FLAT
			:: h < 2 && state[own] == FREE ->
				publish(own, w, h + 1);
				join(own, w)
#endif
			:: true
			fi;
#ifdef STATE_FIRST
			STORE(atomic { state[h] = DONE; busy[h] = 0 });
			STORE(outcome[h] = true)
#else
			STORE(outcome[h] = true);
			STORE(atomic { state[h] = DONE; busy[h] = 0 })
#endif
		fi;
		STORE(runs[w] = false);
		h = 0; from = 0
	od;
dead:
	skip;
	die(w);
	mine = false; from = 0;
	if
	:: alive[w] -> goto begin
	:: over || settled
	fi;
done:
	skip
}

/* The parent frees what a dead home had published, and tells what others have of it. */
inline children_of(w) {
	h = (w == 0 -> 0 : w + 1);
	do
	:: h < (w == 0 -> 2 : w + 2) ->
		if
		:: PHASE(h) == 1 ->
			LOCK(w, P);
			repair(w);
			if :: state[h] == QUEUED -> inring[h] = false; state[h] = FREE :: else fi;
			lock[w] = NOBODY
		:: else
		fi;
		if
		:: OPEN(h) ->
#ifndef NOT_TOLD
			cancel[h] = true;
#endif
			part = h + 1; was = serial[h]
		:: state[h] != FREE && !OPEN(h) -> state[h] = FREE
		:: else
		fi;
		h++
	:: else -> break
	od
}

/* What was below a dead thief's child has ended. */
#define DEAD(w) (dying[w] != 0 && (!OPEN(dying_part[w]) || serial[dying_part[w]] != dying_serial[w]))

inline settle_dying(w) {
	if :: state[dying[w] - 1] == DYING(w) -> state[dying[w] - 1] = LOST :: else fi;
	dying[w] = 0; dying_part[w] = 0; dying_serial[w] = 0
}

/* The root's future becomes final, or its next attempt may start. */
inline settle() {
	d_step {
		assert(busy[0] == 0 && busy[1] == 0 && busy[2] == 0 && busy[3] == 0);
		settled = true
	}
}

proctype Parent() {
	byte h, w, part, was;
	bool waiting;
	byte dying[W], dying_part[W], dying_serial[W];
	do
	:: atomic { over || settled -> break }
	:: atomic {
			!alive[0] && !waiting || !alive[1] || !alive[2] ->
			if
			:: !alive[0] && !waiting -> w = 0
			:: !alive[1] -> w = 1
			:: !alive[2] -> w = 2
			fi
		};
#ifndef SCAN_FIRST
		h = 0;
		do
		:: h < W -> LOCK(h, P); repair(h); lock[h] = NOBODY; h++
		:: else -> break
		od;
#endif
		part = 0;
		children_of(w);
		h = 0;
		do
		:: h < H ->
			if
			:: state[h] == CLAIMED(w) -> state[h] = RETURNED
			:: state[h] == RUNNING(w) ->
#ifndef LOST_TOO_SOON
				if
				:: part != 0 && h < 2 && w != 0 ->
					state[h] = DYING(w);
					dying[w] = h + 1; dying_part[w] = part - 1; dying_serial[w] = was
				:: else -> state[h] = LOST
				fi
#else
				state[h] = LOST
#endif
			:: else
			fi;
			h++
		:: else -> break
		od;
		runs[w] = false;
		h = 0; part = 0; was = 0;
		if
		:: w == 0 ->
			/* Nobody runs anything of the root: it is settled at once, and its word stays as it is. */
			if
			:: runs[1] -> root_cancel = true; waiting = true
			:: else ->
				if
				:: runs[2] -> root_cancel = true; waiting = true
				:: else -> settle()
				fi
			fi
		:: else -> alive[w] = true
		fi;
		w = 0
	:: DEAD(1) -> settle_dying(1)
	:: DEAD(2) -> settle_dying(2)
	:: waiting && !runs[1] ->
		if :: !runs[2] -> settle() :: else fi
	od
}

init {
	atomic {
		lock[0] = NOBODY; lock[1] = NOBODY; lock[2] = NOBODY;
		alive[0] = true; alive[1] = true; alive[2] = true;
		run Task(); run Thief(1); run Thief(2); run Parent()
	}
}

"""Every text of the console that is not data, in one catalogue: a second language is one more instance.

Placeholders are named and filled with `str.format`; a translation may put them in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pdtui.fleet.preflight.outcome import Outcome
from pdtui.fleet.snapshot import NodeState, RankState
from pdtui.readings.verdict import Verdict


def _rank_states() -> Mapping[RankState, str]:
    return {state: state.value for state in RankState}


def _verdicts() -> Mapping[Verdict, str]:
    return {verdict: verdict.value for verdict in Verdict}


def _node_states() -> Mapping[NodeState, str]:
    return {state: state.value for state in NodeState}


def _serving() -> Mapping[str, str]:
    return {word: word for word in ("SERVING", "DEGRADED", "DOWN", "STARTING", "STOPPED", "UNKNOWN")}


def _no_metrics() -> Mapping[RankState, str]:
    return {
        RankState.UNKNOWN: "No metrics yet: its node has not been asked.",
        RankState.STOPPED: "No metrics: it does not run.",
        RankState.STARTING: "No metrics yet: they are read once it is ready.",
        RankState.READY: "No metrics: /metrics has not been answered so far.",
        RankState.UNHEALTHY: "No metrics: it does not answer, and none were read here before.",
        RankState.STALLED: "No metrics: /metrics has not been answered so far.",
        RankState.STOPPING: "No metrics: it stops, and none were read here before.",
        RankState.FAILED: "No metrics: it has failed, and none were read here before.",
        RankState.LOST: "No metrics: its node does not answer, and none were read here before.",
        RankState.UNMANAGED: "No metrics: they are read while /health answers 200.",
        RankState.UNKEPT: "No metrics: they are read while /health answers 200.",
    }


def _actions() -> Mapping[str, str]:
    return {
        "go": "open",
        "logs": "log",
        "describe": "describe",
        "metrics": "metrics",
        "reasons": "reasons",
        "events": "events",
        "ports": "bound ports",
        "progress": "progress",
        "preflight": "preflight",
        "preflight_run": "run",
        "preflight_cancel": "cancel",
        "preflight_open": "open",
        "preflight_again": "again",
        "preflight_bad": "again what is not good",
        "preflight_filter": "filter",
        "preflight_where": "where",
        "preflight_new": "only new",
        "preflight_save": "save",
        "preflight_pings": "ping NPUs",
        "preflight_area": "other half",
        "preflight_zoom": "zoom",
        "preflight_back": "back",
        "preflight_leave": "leave",
        "preflight_help": "help",
        "next_tab": "next tab",
        "previous_tab": "previous tab",
        "zoom": "zoom",
        "next_area": "next area",
        "previous_area": "previous area",
        "back": "back",
        "filter": "filter",
        "mark": "mark",
        "mark_range": "mark up to here",
        "mode": "what the grid shows",
        "test": "test",
        "poll": "health",
        "start": "start",
        "stop": "stop",
        "restart": "restart",
        "restart_failed": "restart failed",
        "container_up": "container up",
        "container_down": "container down",
        "container_recreate": "container recreate",
        "cancel_operation": "cancel",
        "acknowledge": "acknowledge",
        "preflight_acknowledge": "acknowledge",
        "edit": "edit the file",
        "shell": "shell",
        "text_copy": "copy",
        "test_send": "send",
        "test_leave": "leave",
        "prompt_keep": "keep",
        "prompt_drop": "take back",
        "bell": "bell on",
        "theme": "next theme",
        "palette": "palette",
        "help": "help",
        "quit": "quit",
        "interrupt": "ctrl+c",
        "log_follow": "follow",
        "log_search": "search",
        "log_filter": "only lines with",
        "log_context": "lines around",
        "log_next": "next error",
        "log_previous": "previous error",
        "log_wrap": "wrap",
        "log_times": "times",
        "log_checks": "health checks",
        "log_copy": "copy",
        "log_save": "save to a file",
    }


@dataclass(frozen=True)
class Strings:
    """One language."""

    rank_states: Mapping[RankState, str] = field(default_factory=_rank_states)
    verdicts: Mapping[Verdict, str] = field(default_factory=_verdicts)
    node_states: Mapping[NodeState, str] = field(default_factory=_node_states)
    serving: Mapping[str, str] = field(default_factory=_serving)
    actions: Mapping[str, str] = field(default_factory=_actions)

    # header
    in_flight: str = "in flight {n}"
    tokens_per_s: str = "{n} tok/s"
    ttft: str = "D TTFT {t}"
    nodes: str = "{n} nodes"
    one_node: str = "1 node"
    read_only: str = " READ-ONLY "
    protected: str = " PROTECTED "
    file_changed: str = "file changed on disk"
    file_broken: str = "file broken on disk"
    file_removed: str = "file removed from disk"
    go_there: str = "enter: go there"

    # areas
    npus: str = "NPUs"
    grid_of_ranks: str = "Nodes"
    ranks: str = "Ranks"
    ranks_count: str = "{n}"
    ranks_filtered: str = "{n} of {total}"
    ranks_marked: str = "{n} marked"
    more_above_below: str = "{first}-{last} of {total}"
    filter_is: str = "/{text}"
    grid_modes: Mapping[str, str] = field(
        default_factory=lambda: {
            "verdict": "verdict",
            "hbm": "HBM",
            "util": "util",
            "temp": "temp",
            "rank": "rank",
            "state": "state",
            "run": "running",
            "wait": "waiting",
            "kv": "KV %",
        }
    )
    tab_log: str = "log"
    tab_describe: str = "describe"
    tab_metrics: str = "metrics"
    tab_reasons: str = "findings"
    tab_events: str = "events"
    tab_ports: str = "ports"
    tab_progress: str = "progress"
    tab_test: str = "test"

    # grid
    column_hbm: str = "HBM"
    column_temp: str = "max C"
    column_temp_short: str = "C"
    column_run: str = "run"
    column_kv: str = "KV"
    column_polled: str = "polled"
    retry: str = "{state}, try {n}"
    retry_in: str = "try {n} in {t}"
    npu_line: str = "{node} NPU {npu}"
    raw_output: str = "i: reasons"
    more_of_rank: str = "d: describe"
    no_rank_here: str = "no ranks"
    try_again: str = "c: try again"
    never_polled: str = "not read yet"
    role_short_prefill: str = "P"
    role_short_decode: str = "D"

    # ranks
    exit_status: str = "exit {n}"
    signal: str = "signal {n}"
    running: str = "run {n}"
    waiting: str = "wait {n}"
    kv: str = "kv {n} %"
    per_second: str = " tok/s"
    per_second_short: str = "/s"
    short_ttft: str = "ttft {n}"
    short_tpot: str = "tpot {n}"
    short_external: str = "ext {n} %"
    short_acceptance: str = "acc {n} %"
    short_preemptions: str = "pre {n}"
    short_alarms: Mapping[str, str] = field(
        default_factory=lambda: {
            "computes-prompts": "computes prompts",
            "kv-held": "KV held",
            "kv-expired": "KV expired",
        }
    )
    no_group: str = "no group"
    last_state: str = "was {state}"
    no_ranks_match: str = "No rank matches {text}. esc clears the filter."
    no_ranks: str = "The file describes no ranks."
    nothing_runs: str = "No rank runs. S starts all {n}, after p preflight."

    nothing_runs_short: str = "S starts all, after p preflight"

    # detail
    nothing_selected: str = "Nothing selected."
    state: str = "state"
    health: str = "health"
    since: str = "since"
    stage: str = "stage"
    node: str = "node"
    devices: str = "devices"
    ports: str = "ports"
    run_number: str = "run"
    started_by: str = "started by"
    started: str = "started"
    ended: str = "ended"
    last_start: str = "last start took"
    process: str = "process"
    log_file: str = "log"
    log_note: str = "about it"
    evidence: str = "evidence"
    why: str = "why"
    first_cause: str = "first cause"
    shown_by: str = "shown by"
    last_work: str = "last work"
    remedy: str = "what helps"
    difference: str = "runs otherwise than the file says"
    unmanaged_health: str = "/health {health}"
    unmanaged_why: str = "started by hand, not by pdtui: it is watched, and stops only when you say so"
    unmanaged_remedy: str = "r takes it over: it is stopped by its process tree, then started by pdtui"
    foreign: str = "not of this cluster"
    ownerless: str = "NPU {npu}: {used:.1f} GB of HBM in use, and no process is known to hold it"
    foreign_pid: str = "pid {pid}"
    foreign_nobody: str = "a process that is not seen"
    foreign_of: str = "of {user}"
    foreign_since: str = "since {t}"
    foreign_npus: str = "NPU {npus}"
    foreign_ports: str = "port {ports}"
    foreign_hits: str = "where {ranks} belongs"
    foreign_rank: str = "rank {rank} of another cluster"
    foreign_uses: str = "used by {who}"
    command: str = "command"
    environment: str = "environment"
    flag_outdated: str = "outdated"
    flag_not_in_file: str = "not in the file"
    not_in_plan: str = "The file does not plan this rank; its command is not known."
    no_metrics: Mapping[RankState, str] = field(default_factory=_no_metrics)
    metric_last: str = "last read {t} ago"
    metric_before: Mapping[RankState, str] = field(
        default_factory=lambda: {
            RankState.FAILED: "before it failed",
            RankState.UNHEALTHY: "before it stopped answering",
            RankState.LOST: "before its node was lost",
            RankState.STOPPING: "before it began to stop",
        }
    )
    metric_running: str = "requests running"
    metric_waiting: str = "requests waiting"
    metric_kv: str = "KV cache used"
    metric_generation: str = "tokens/s out"
    metric_prompt: str = "prompt tokens/s"
    metric_ttft: str = "time to first token"
    metric_tpot: str = "time per token"
    metric_acceptance: str = "drafts accepted"
    metric_length: str = "{n:.1f} a step"
    metric_preemptions: str = "preemptions"
    metric_just_now: str = "+{n} now"
    metric_external: str = "prompt KV from prefill"
    metric_expired: str = "leases expired"
    metric_late: str = "pulled too late"
    metric_failed: str = "transfers failed"
    metric_errors: str = "requests failed"
    metric_aborts: str = "clients left"
    metric_over: str = ", over {t}"
    metric_history: str = "lines show the last"
    metric_local: str = "prompt computed here"
    metric_local_note: str = "a decode rank should compute none: KV was not pulled"
    metric_age: str = "read"
    ago: str = "{t} ago"
    node_host: str = "host"
    node_facts: str = "machine"
    node_error: str = "error"
    condition: str = "warning"
    alarm: str = "warning"
    alarm_means: str = "it means"
    alarms: Mapping[str, str] = field(
        default_factory=lambda: {
            "computes-prompts": "a decode rank should get the KV of every prompt from a prefill rank; what it"
            " computes itself keeps its other requests waiting, and prefill ranks idle",
            "kv-held": "finished prompts keep their KV until a decode rank has fetched it; while they fill the"
            " cache no new prompt begins here",
            "kv-expired": "a prefill rank keeps KV that nobody fetches until its lease ends; a request whose KV is"
            " gone has to be computed again, and one that fetches it later may be answered with wrong text",
        }
    )
    node_clock: str = "clock ahead by"
    link: str = "link"
    net_health: str = "net health"
    vnic: str = "vnic"
    npu_health: str = "npu-smi health"
    hbm: str = "HBM"
    temperature: str = "temperature"
    utilization: str = "AI core"
    power: str = "power"
    processes: str = "processes"
    planned_rank: str = "planned rank"
    asked: str = "asked"
    answered: str = "answered"
    no_output: str = "no output"
    finding_of: str = "{n} of {total}"
    known: str = "known"
    acknowledged: str = "known"
    acknowledged_by: str = "by {who} until {until}: {reason}"
    lost_group: str = "its group is lost"
    values: str = "values"
    address: str = "address"
    last_polled: str = "oldest value"
    next_try: str = "next try"
    next_try_in: str = "in {t}; c tries now"
    polled_every: str = "read every"
    intervals: str = "table {table}, ports {ports}, probe {probe}, settings {slow}"
    npu_quiet: str = "{verdict}: nothing to say."
    npu_was: str = "was {verdict}; its node does not answer now."
    healthy_quiet: str = "Nothing is wrong here."
    ports_of: str = "{node}  {address}"
    ports_all: str = "all nodes"
    ports_none: str = "No port is like that."
    port_uses: Mapping[str, str] = field(
        default_factory=lambda: {
            "api": "API",
            "rpc": "RPC",
            "kv": "KV",
            "proxy": "proxy",
            "transfer-engine": "transfer engine",
            "transfer-engine-rpc": "transfer engine, handshake",
            "hccl": "HCCL",
            "ephemeral": "ephemeral: for clients",
        }
    )
    port_near: Mapping[str, str] = field(
        default_factory=lambda: {
            "inside": "in {range}, {use}",
            "below": "{n} below {range}, {use}",
            "above": "{n} above {range}, {use}",
        }
    )
    ports_kept: str = "kept free: nobody listens"
    ports_not_known: str = "not known now"
    ports_held: str = "{port} held by {who}"
    ports_somebody: str = "a process"
    ports_answers: str = "answers"
    ports_no_answer: str = "nobody answers"
    ports_answer: str = "{n} of {total} answer"
    ports_runs: str = "its rank runs"
    ports_no_rank: str = "no rank runs"
    ports_run: str = "{n} of {total} ranks run"
    ports_by_hand: str = ", {n} started by hand"
    file_warning: str = "warning"
    file_accepted: str = "accepted"
    offer_ports_all: str = "ports of all nodes"
    offer_ports_here: str = "ports of this node"
    offer_filter_ports: str = "filter ports"
    no_events: str = "Nothing has happened yet."

    # log
    log_empty: str = "No lines yet."
    log_no_rank: str = "Select a rank to see its log."
    log_dropped: str = "{n} lines dropped"
    log_stays: str = "not following"
    log_behind: str = "{n} below"
    log_matches: str = "{n} found"
    log_only: str = "only {text} (+-{context})"
    log_none_match: str = "No held line has {text}."
    log_hidden: str = "{n} health checks hidden"
    log_hidden_have: str = "{n} hidden health checks have; h shows them."
    log_only_checks: str = "Nothing but {n} health checks; h shows them."
    log_gap: str = "{n} lines not shown"
    log_no_error: str = "No error in the lines held."
    log_no_match: str = "Not found: {text}"
    copied: str = "{n} lines sent to the terminal's clipboard (in tmux: set-clipboard on)"
    copied_cut: str = "the last {n} lines that fit were sent to the clipboard; o writes all to a file"
    saved: str = "{n} lines written to {path}"
    not_saved: str = "cannot write {path}: {error}"
    nothing_to_copy: str = "nothing to copy"
    nothing_to_save: str = "o writes the lines of the log to a file; there are none"

    # test completion
    test_title: str = "test  via embedded proxy  {model}"
    test_prompt: str = "> "
    test_hint: str = "Type a prompt, enter sends it, esc leaves."
    test_queue: str = "queue {t}"
    test_prefill: str = "prefill {t}"
    test_transfer: str = "transfer {t}"
    test_first: str = "first token {t}"
    test_tokens: str = "{n} tokens"
    test_status: str = "HTTP {n}"
    test_cancelled: str = "cancelled"
    test_waiting: str = "waiting for the first token"
    test_failed: str = "no answer: {error}"
    test_answering: str = "Answering; esc cancels it."
    test_helps_failed: str = "esc R restarts what failed ({ranks})"
    test_helps_starting: str = "{ranks} still starting: ask again when SERVING"
    test_helps_stopped: str = "esc S starts what is stopped ({ranks})"

    # groups
    group: str = "group"
    group_must_restart: str = "lost: this rank still runs, but never gets its group back; restart {group}"
    group_late: str = "serves without this rank and takes none back; restart {group}"
    group_waits_for: str = "waits for {ranks} on {nodes}"
    group_after: str = "broke {s} s after {rank} died: perhaps its consequence; look before restarting it"
    group_since: str = "since {t}"
    deaths: str = "order of deaths"
    more_deaths: str = "and {n} more"

    # progress
    nothing_moves: str = "Nothing starts or stops, and nothing was done a moment ago."
    comes_up: str = "{group}  {ready} of {total} ready"
    not_yet: str = "without {ranks}"
    stages: Mapping[str, str] = field(
        default_factory=lambda: {
            "process": "process up",
            "configuration": "configuration",
            "rendezvous": "met its group",
            "weights": "weights loaded",
            "KV cache": "KV cache",
            "engine": "engine, graphs",
            "API server": "API server",
            "ready": "ready",
        }
    )
    last_one: str = "last"

    # bell
    bell_more: str = " (+{n} more)"
    offer_bell_off: str = "bell off"
    bell_is_on: str = "the bell rings when something gets worse"
    bell_is_off: str = "the bell is off"

    # acknowledgements
    acknowledge_title: str = "acknowledge"
    acknowledge_what: str = (
        "It stays on the screen, marked as known. It rings no bell, is no headline, runs no hook and fails no"
        " `status`, on any console of this cluster. If it turns into something else, that is told."
    )
    acknowledge_do: str = "Acknowledge"
    for_how_long: tuple[str, ...] = (
        "1 hour, until {until}",
        "8 hours, until {until}",
        "3 days, until {until}",
        "until it is taken back, at most 90 days",
    )
    for_how_long_label: str = "it lasts"
    hint_reason: str = "type why"
    hint_how_long: str = "up, down: how long"
    was_acknowledged: str = "acknowledged: {key}; a takes it back"
    was_unacknowledged: str = "no longer acknowledged: {key}"
    more_keys: str = " (+{n})"
    acknowledged_not_on: str = "not yet on {nodes}"
    offer_unacknowledge: str = "tell again"
    why_no_finding: str = "nothing that is wrong is selected"
    acknowledgements: str = "acknowledged ({n})"
    events: str = "events"

    # preflight
    preflight: str = "preflight"
    outcomes: Mapping[Outcome, str] = field(
        default_factory=lambda: {outcome: outcome.value for outcome in Outcome}
    )
    new: str = "new"
    because: str = "because"
    checks: str = "checks"
    column_all: str = "all"
    preflight_all: str = "all {n} nodes"
    preflight_one: str = "the one node"
    preflight_marked: str = "{n} nodes of marked ranks"
    preflight_where: str = "on {where}"
    preflight_one_place: str = "there is no other choice: mark ranks, or point at a node, before p"
    columns_shown: str = "nodes {first}-{last} of {total}"
    checks_shown: str = "checks {first}-{last} of {total}"
    preflight_nodes: str = "{n} of {total} nodes"
    preflight_fates: Mapping[str, str] = field(
        default_factory=lambda: {
            "runs": "{took}",
            "done": "{age}, took {took}",
            "cancelled": "cancelled {age}, after {took}",
            "failed": "broke off {age}, after {took}",
        }
    )
    preflight_matrix: str = "Checks by nodes"
    preflight_found: str = "What is wrong"
    preflight_found_new: str = "New since the run before"
    preflight_good: str = "Nothing is wrong."
    preflight_good_shown: str = "Nothing is wrong in what the filter leaves; elsewhere {n} are. esc shows them."
    preflight_good_so_far: str = "Nothing is wrong in what was answered; the rest is not known."
    preflight_no_news: str = "Nothing is worse than in the run before."
    preflight_nothing_yet: str = "Nothing wrong so far."
    preflight_gone: str = "No longer wrong:"
    preflight_cell_empty: str = "Nothing is said of this check here."
    preflight_across: str = "between nodes: {what}, {n} of {total}"
    preflight_behind: str = "{node}: {n} of {total} answers"
    preflight_broke_off: str = "it ended without a report"
    preflight_none: str = "No preflight has run since this console was opened."
    preflight_what: str = (
        "It asks {where} over SSH for all that a start rests on: containers, NPUs and their links, addresses,"
        " ports, versions, disks. It changes nothing; NPUs that ranks use are not pinged."
    )
    preflight_keys: str = "p runs it.  w says where: {where}."
    preflight_shows: str = "p: shows it"
    offer_run_all: str = "run on {where}"
    offer_run_checks: str = "run {n} checks on {where}"
    offer_again: str = "{check} again"
    offer_again_bad: str = "{n} not good again"
    offer_show_all: str = "show all"
    why_preflight_runs: str = "a preflight runs; X cancels it"
    why_no_check: str = "no check is under the cursor"
    why_all_good: str = "every check is good"
    why_no_npus: str = "there are no NPUs"
    why_no_preflight: str = "no preflight runs"
    why_one_preflight: str = "there was no run before this one"
    why_no_results: str = "nothing is known yet"
    preflight_saved: str = "written: {path}.md and .json"
    preflight_cancelled: str = "cancelled; what was known by then stays"
    pings_title: str = "ping NPUs"
    pings_what: str = (
        "Every NPU of {where} pings others over the plane in use (hccn_tool, small packets), in rounds: a device"
        " takes part in one ping at a time."
    )
    pings_busy: str = (
        "{ranks} are running. The pings share their links and keep hccn_tool busy on each device for seconds, so"
        " health values age meanwhile. Without this, NPUs that a process uses are left out."
    )
    pings_idle: str = "No rank is running, so nobody is disturbed."
    pings_do: str = "Ping"

    # operations
    operation_by: str = "by {who}"
    operation_states: Mapping[str, str] = field(
        default_factory=lambda: {
            "running": "running",
            "done": "done",
            "failed": "failed",
            "cancelled": "cancelled",
        }
    )
    step_states: Mapping[str, str] = field(
        default_factory=lambda: {
            "waiting": "waiting",
            "running": "begun",
            "failed": "failed",
            "skipped": "left out",
        }
    )
    step_done: Mapping[str, str] = field(
        default_factory=lambda: {
            "start": "ready",
            "restart": "ready",
            "stop": "stopped",
            "container up": "up",
            "container down": "down",
            "container recreate": "made anew",
        }
    )
    one_rank: str = "1 rank"
    many_ranks: str = "{n} ranks"
    looking: str = "looking at what {verb} touches"
    one_at_a_time: str = "still looking at the action before"
    cancel_asked: str = "asked to stop where it is: {operation}"

    # offers
    why_no_container: str = "ranks run on the hosts themselves"
    why_read_only: str = "the console is read-only"
    why_nothing_selected: str = "nothing is selected"
    why_none_stopped: str = "no rank is stopped"
    why_none_failed: str = "no rank has failed"
    why_none_running: str = "nothing of it runs"
    why_nothing_moves: str = "nothing starts or stops"
    why_no_operation: str = "no operation runs"
    why_no_rank: str = "no rank is selected"
    why_all_reached: str = "every node answers"
    offer_try_again: str = "try again"
    offer_take_over: str = "{restart} (take over)"
    offer_next_match: str = "next match"
    offer_previous_match: str = "previous match"
    offer_cancel_answer: str = "cancel the answer"
    offer_show_checks: str = "show health checks"
    offer_hide_checks: str = "hide health checks"
    offer_go: str = "go there"
    offer_start_all: str = "start all ({ranks})"
    offer_start_stopped: str = "start stopped ({ranks})"
    offer_start_marked: str = "start {n} marked"
    offer_marked: str = "{verb} {n} marked"
    offer_failed_group: str = "restart failed (group {group}, {ranks})"
    offer_failed: str = "restart failed ({ranks})"
    refused: str = "{action}: {why}"
    polling: str = "reading the health of {what}"
    polled: str = "read the health of {what}"
    all_nodes: str = "all nodes"
    interrupt_harmless_here: str = "ctrl+c does nothing here; X cancels a preflight, esc goes back"
    interrupt_harmless: str = "ctrl+c does nothing here; q quits"

    # confirm
    cancel: str = "Cancel"
    verbs: Mapping[str, str] = field(
        default_factory=lambda: {
            "start": "Start",
            "stop": "Stop",
            "restart": "Restart",
            "container up": "Bring up",
            "container down": "Take down",
            "container recreate": "Make anew",
        }
    )
    shows_commands: str = "{key} shows the commands."
    hides_commands: str = "{key} hides the commands."
    type_name: str = "Type {name} to confirm:"
    warnings: str = "It can be done, but:"
    by_hand: str = "Started by hand; these processes are told to end:"
    blockers: str = "In the way:"
    override: str = "{key} does it all the same, and asks for a reason"
    overriding: str = "Reason:"
    other_hands: str = "In other hands:"
    lease: str = "{who}{where}: {verb} {what} on {nodes}, for {age} now"
    lease_from: str = " from {origin}"
    takes_over: str = "{key} takes over, which ends that, and asks for a reason"
    takes_over_stop: str = "Going ahead takes over and ends that."
    take_over_and: str = "Take over, {verb}"
    taken_over: str = "from the console"
    lease_line: str = "{verb} {what}"
    lease_by: str = "by {who}{where}, another console, on {nodes}"
    blocked: str = "blocked"
    choice_group: str = "whole group ({ranks})"
    choice_only: str = "only {ids}"
    choice_rolling: str = "one group after the other"
    choice_key: str = "{key} switches"
    hint_name: str = "type the name"
    hint_choose: str = "tab, left, right choose"
    hint_choose_typing: str = "tab chooses"
    hint_enter: str = "enter does it"
    hint_cancels: str = "esc cancels"
    hint_closes: str = "enter or esc closes"
    hint_scrolls: str = "up, down scroll"
    nothing_done: str = "nothing was done"
    quit_title: str = "quit"
    quit_question: str = "{what} is running. It ends when this console does; ranks go on as they are."
    quit_ended: str = "{what} has ended. Leaving stops nothing any more."
    quit: str = "Quit"
    unknown_theme: str = "theme: {error}"

    # suspend
    shell_greeting: str = "{node}: exit comes back to pdtui"
    no_suspend: str = "the terminal cannot be handed over here"
    command_failed: str = "{command}: {error}"
    command_status: str = "{command} ended with status {n}"
    no_node: str = "no node is selected"

    # help, palette
    help_title: str = "keys"
    close: str = "Close"
    groups: Mapping[str, str] = field(
        default_factory=lambda: {
            "act": "Do",
            "look": "Look",
            "move": "Move",
            "log": "In the log",
            "text": "In describe, metrics, findings, events, preflight",
            "test": "In the prompt of the test",
            "prompt": "While a filter or a search is typed",
            "preflight": "In preflight (p)",
            "console": "Console",
        }
    )
    help_move: tuple[tuple[str, str], ...] = (
        ("up down j k", "row"),
        ("left right", "{cell}; in a log: sideways"),
        ("pageup pagedown", "page"),
        ("home g  end G", "first, last"),
    )
    help_cell_npu: str = "NPU"
    help_cell_rank: str = "rank"
    help_filter: str = (
        "Filter: words that a rank must show, !word that it must not; {fields}   state:failed node:node3 !p1/0"
    )
    filter_unknown_field: str = "no field {name}; fields: {fields}"
    jump_node: str = "go to node {name}"
    jump_rank: str = "go to rank {name}"
    jump_group: str = "show group {name}"
    palette_theme: str = "theme {name}"

    # terminal
    too_small: str = "{width}x{height} is too small: {min_width}x{min_height} needed"
    crashed: str = "pdtui console failed: {error}; details in {path}. Ranks are not affected."


S: Final = Strings()
"""The catalogue in use."""


def nodes_of(number: int) -> str:
    """Return `1 node`, `4 nodes`."""
    return S.one_node if number == 1 else S.nodes.format(n=number)


def ranks_of(number: int) -> str:
    """Return `1 rank`, `32 ranks`."""
    return S.one_rank if number == 1 else S.many_ranks.format(n=number)

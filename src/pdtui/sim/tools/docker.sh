#!/bin/sh
# Simulated docker (podman, nerdctl, ctr): `exec` into containers that run, `ps`, `inspect`, and through the engine
# `run`, `image inspect`, `pull`, `logs`, `start`, `stop`, `restart`, `kill`, `rm`, `rename`, `pause`, `unpause`. Where the
# kernel gives no namespaces, nothing is paused, and a container is a folder.
containers='@NODE@/containers'
engine='@NODE@/engine'
tool=${0##*/}

fail() {
    echo "$@" >&2
    exit 1
}
daemon() { # what stands between this user and the engine
    [ ! -f "$engine/down" ] ||
        fail "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
    [ ! -f "$engine/denied" ] || [ -n "$SUDO_USER" ] ||
        fail "permission denied while trying to connect to the Docker daemon socket at" \
            "unix:///var/run/docker.sock: Get \"http://%2Fvar%2Frun%2Fdocker.sock/v1.45/containers/json\":" \
            "dial unix /var/run/docker.sock: connect: permission denied"
}
state() { # name: sets $state and $pid
    pid=
    state=missing
    [ -d "$containers/$1" ] || return 0
    if [ -f "$engine/plain" ]; then
        state=running
        [ ! -f "$engine/$1/ended" ] || state=exited
        return
    fi
    state=exited
    [ ! -f "$engine/$1/pid" ] || read -r pid <"$engine/$1/pid"
    [ -d "/proc/${pid:-none}" ] || return 0
    state=running
    [ ! -f "$engine/$1/paused" ] || state=paused
}
require() { # name: fails in the tool's words unless the container runs
    state "$1"
    case $state,$tool in
    missing,docker) fail "Error response from daemon: No such container: $1" ;;
    exited,docker) fail "Error response from daemon: container 0123456789ab is not running" ;;
    paused,docker) fail "Error response from daemon: Container $1 is paused, unpause the container before exec" ;;
    missing,podman) fail "Error: no container with name or ID \"$1\" found: no such container" ;;
    *,podman)
        [ $state = running ] ||
            fail "Error: can only create exec sessions on running containers: container state improper"
        ;;
    missing,nerdctl) fail "FATA[0000] no such container $1" ;;
    *,nerdctl) [ $state = running ] || fail "FATA[0000] cannot exec in a stopped container" ;;
    missing,ctr) fail "ctr: container \"$1\" in namespace \"k8s.io\": not found" ;;
    exited,ctr) fail "ctr: no running task found: task $1 not found: not found" ;;
    paused,ctr) fail "ctr: OCI runtime exec failed: cannot exec in a paused container" ;;
    esac
}
enter() { # name command...: becomes that command in the container
    name=$1
    shift
    require "$name"
    if [ -f "$engine/plain" ]; then
        home=$containers/$name/root
        path=$containers/$name/usr/local/bin:@PATH@
        cd "$containers/$name" || exit 1
        view=$containers/$name
    else
        home=/root
        path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        set -- sh -c 'command -v "$1" >/dev/null || {
            echo "OCI runtime exec failed: exec failed: unable to start container process: exec: \"$1\":" \
                "executable file not found in \$PATH: unknown" >&2
            exit 127
        }
        exec "$@"' sh "$@"
    fi
    set -- env -i HOME="$home" PATH="$path" HOSTNAME='@CONTAINER_HOSTNAME@' LANG=C.UTF-8 \
        PDTUI_SIM_NODE='@NODE@' PDTUI_ADDRESS_VIEW='@ADDRESS@' \
        ${view:+PDTUI_ROOT_VIEW="$view"} ${PDTUI_MACHINE_VIEW:+PDTUI_MACHINE_VIEW="$PDTUI_MACHINE_VIEW"} ${set_env:+"$set_env"} "$@"
    [ -f "$engine/plain" ] || set -- nsenter -t "$pid" -m -u -i -p -- "$@"
    exec "$@"
}

set_env=
view=
id=
force=
hang() { # file: never answers while it is there
    [ ! -f "$engine/$1" ] || while :; do sleep 1000; done
}
show() { # file: prints its lines
    while IFS= read -r line || [ -n "$line" ]; do printf '%s\n' "$line"; done <"$1"
}
if [ "$tool" = ctr ]; then # ctr [-n NAMESPACE] tasks exec --exec-id ID NAME COMMAND...
    while [ "${1#-}" != "$1" ]; do shift 2; done
    case "$1 $2" in
    'tasks exec' | 'task exec' | 't exec') shift 2 ;;
    'containers info' | 'container info' | 'c info' | 'containers inspect')
        daemon
        hang hang
        [ -d "$containers/$3" ] || fail "ctr: container \"$3\" in namespace \"k8s.io\": not found"
        if [ -f "$engine/garble" ]; then show "$engine/garble"; else show "$engine/$3/ctr.json"; fi
        exit 0
        ;;
    'tasks ls' | 'tasks list' | 'task ls')
        daemon
        echo 'TASK    PID    STATUS'
        for folder in "$containers"/*; do
            state "${folder##*/}"
            case $state in running | paused) printf '%s    %s    %s\n' "${folder##*/}" "${pid:-1}" RUNNING ;; esac
        done
        exit 0
        ;;
    *) fail "ctr: no help topic for '$*'" ;;
    esac
    while [ "${1#-}" != "$1" ]; do
        case $1 in
        --exec-id)
            id=$2
            shift
            ;;
        --exec-id=*) id=${1#*=} ;;
        esac
        shift
    done
    [ -n "$id" ] || fail "ctr: exec id must be provided"
    [ "$id" = "${id%/*}" ] && mkdir "$engine/exec-$id" 2>/dev/null || fail "ctr: id $id: already exists"
    daemon
    (enter "$@")
    status=$?
    rmdir "$engine/exec-$id"
    exit $status
fi

command=$1
[ $# = 0 ] || shift
daemon
case $command in
exec)
    while [ $# -gt 0 ]; do
        case $1 in
        -i | -t | -it | -ti | --interactive | --tty) ;;
        -e | --env)
            set_env=$2
            shift
            ;;
        -w | --workdir | -u | --user) shift ;;
        -*)
            echo "unknown shorthand flag: '${1#-}' in $1" >&2
            exit 125
            ;;
        *) break ;;
        esac
        shift
    done
    [ $# -ge 2 ] || fail '"docker exec" requires at least 2 arguments.'
    enter "$@"
    ;;
inspect)
    format=
    while [ $# -gt 1 ]; do
        case $1 in -f | --format) format=$2 ;; esac
        shift
    done
    hang hang
    state "$1"
    [ $state != missing ] || fail "Error response from daemon: No such container: $1"
    if [ -f "$engine/garble" ]; then
        show "$engine/garble"
        exit 0
    fi
    running=false paused=false
    [ $state = exited ] || running=true
    [ $state != paused ] || paused=true
    case $format in
    '{{.State.Running}}') echo $running ;;
    '{{.State.Status}}') echo $state ;;
    '{{.State.Pid}}') echo "${pid:-0}" ;;
    '' | '{{json .}}' | json)
        IFS= read -r rest <"$engine/$1/inspect.json" || :
        text='{"Id": "@CONTAINER_HOSTNAME@", "Name": "/'$1'", "State": {"Status": "'$state'", "Running": '$running
        text=$text', "Paused": '$paused', "Restarting": false, "OOMKilled": false, "Dead": false, "Pid": '${pid:-0}
        text=$text', "ExitCode": 0, "StartedAt": "2026-01-01T00:00:00Z"}, '$rest
        if [ -z "$format" ]; then printf '[%s]\n' "$text"; else printf '%s\n' "$text"; fi
        ;;
    *) fail "template parsing error: this simulated engine does not know $format" ;;
    esac
    ;;
ps)
    echo "CONTAINER ID   IMAGE          COMMAND            CREATED        STATUS                    NAMES"
    for folder in "$containers"/*; do
        [ -d "$folder" ] || continue
        state "${folder##*/}"
        case $state in
        running) text='Up 2 hours' ;;
        paused) text='Up 2 hours (Paused)' ;;
        *) text='Exited (137) 1 minute ago' ;;
        esac
        [ $state != exited ] || [ "$1" = -a ] || continue
        printf '%-15s%-15s%-19s%-15s%-26s%s\n' 0123456789ab vllm-ascend '"sleep infinity"' '2 hours ago' "$text" \
            "${folder##*/}"
    done
    ;;
run | image | pull | logs)
    hang hang
    exec "$engine/engine" "$command" - "$tool" "$@"
    ;;
pause | unpause)
    [ ! -f "$engine/plain" ] || fail "docker $command: this kernel gives the simulated container no namespaces"
    "$engine/engine" $command "$1" || exit 1
    echo "$1"
    ;;
rename)
    [ $# = 2 ] || fail '"docker rename" requires 2 arguments.'
    state "$1"
    case $state,$tool in
    missing,podman) fail "Error: no container with name or ID \"$1\" found: no such container" ;;
    missing,nerdctl) fail "FATA[0000] no such container: $1" ;;
    missing,*) fail "Error response from daemon: No such container: $1" ;;
    esac
    exec "$engine/engine" rename "$1" "$tool" "$2"
    ;;
start | stop | restart | kill | rm)
    seconds=
    while [ $# -gt 1 ]; do
        case $1 in -t | --time | --timeout) seconds=$2 ;; -f | --force) force=-f ;; esac
        shift
    done
    state "$1"
    case $state,$tool in
    missing,podman) fail "Error: no container with name or ID \"$1\" found: no such container" ;;
    missing,nerdctl) fail "FATA[0000] no such container $1" ;;
    missing,*) fail "Error response from daemon: No such container: $1" ;;
    esac
    [ "$command" != rm ] || case $state,$force in
    running, | paused,) fail "Error response from daemon: cannot remove container \"/$1\": container is running:" \
        "stop the container before removing or force remove" ;;
    esac
    [ "$command" != rm ] || command=remove
    case $command in stop | restart) ;; *) seconds= ;; esac
    "$engine/engine" $command "$1" $seconds || exit 1
    echo "$1"
    ;;
*)
    echo "docker: '$command' is not a docker command." >&2
    exit 1
    ;;
esac

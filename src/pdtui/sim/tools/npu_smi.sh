#!/bin/sh
# Simulated npu-smi: answers from the files below $npus, one folder for each NPU. Builtins only.
# $npu/smi is one line: health, temperature (C), power (W), bus id, HBM in use at idle (MB), AICore (%).
# $npu/hbm/PID is one line: HBM in use (MB), process name; a process that is gone does not count.
npus='@NODE@/npu'
faults='@NODE@/fault'
platform='@PLATFORM@'
count=@COUNT@      # NPUs (cards)
chips=@CHIPS@      # chips of one
name='@NAME@'
hbm=@HBM@          # MB of one chip
version='@VERSION@'
server=@SERVER@    # index of this server in its super pod

thin=+---------------------------+---------------+----------------------------------------------------+
thick=+===========================+===============+====================================================+
wide=+------------------------------------------------------------------------------------------------+

usage() { echo "Usage: npu-smi info <watch|proc|-h|-m|-l|-t type> [Options...]"; }

load() { # phy: sets health temp power bus base core, and $used with the processes' HBM
    read -r health temp power bus base core <"$npus/$1/smi"
    used=$base
    for file in "$npus/$1/hbm"/*; do
        [ -d "/proc/${file##*/}" ] || continue
        read -r mb process <"$file" || continue
        used=$((used + mb))
    done
}

table() {
    second='Chip                 '
    [ "$platform" != a3 ] || second='Chip  Phy-ID         '
    echo "$wide"
    printf '| npu-smi %-25sVersion: %-52s |\n' "$version" "$version"
    echo "$thin"
    echo "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|"
    echo "| $second     | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |"
    echo "$thick"
    phy=0
    while [ $phy -lt $((count * chips)) ]; do
        npu=$((phy / chips)) chip=$((phy % chips))
        rule=$thick number=
        if [ ! -f "$npus/$phy/gone" ]; then
            load $phy
            [ $chip = 0 ] || power=-
            [ $((chip + 1)) -eq $chips ] || rule=$wide
            [ "$platform" != a3 ] || number=$phy
            printf '| %-6s%-20s| %-14s| %-12s%-18s0    / 0             |\n' $npu "$name" "$health" "$power" "$temp"
            printf '| %-6s%-20s| %-14s| %-12s0    / 0          %-5s/ %-14s|\n' $chip "$number" "$bus" "$core" "$used" $hbm
            echo "$rule"
        fi
        phy=$((phy + 1))
    done
    echo "$thin"
    echo "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"
    echo "$thick"
    phy=0
    while [ $phy -lt $((count * chips)) ]; do
        npu=$((phy / chips)) chip=$((phy % chips))
        [ $chip != 0 ] || idle=1
        for file in "$npus/$phy/hbm"/*; do
            [ -d "/proc/${file##*/}" ] || continue
            read -r mb process <"$file" || continue
            idle=0
            printf '| %-8s%-18s| %-14s| %-25s| %-24s|\n' $npu $chip "${file##*/}" "$process" "$mb"
        done
        phy=$((phy + 1))
        if [ $((chip + 1)) -eq $chips ]; then
            [ $idle = 0 ] || printf '| No running processes found in NPU %-61s|\n' $npu
            echo "$thick"
        fi
    done
}

list() {
    printf '\t%-30s : %s\n' 'Total Count' $count
    npu=0
    while [ $npu -lt $count ]; do
        printf '\n\t%-30s : %s\n\t%-30s : %s\n' 'NPU ID' $npu 'Chip Count' $chips
        npu=$((npu + 1))
    done
}

mapping() {
    if [ "$platform" = a3 ]; then
        row='\t%-30s %-30s %-30s %-30s %s\n'
        printf "$row" 'NPU ID' 'Chip ID' 'Chip Logic ID' 'Chip Phy-ID' 'Chip Name'
    else
        row='\t%-30s %-30s %-30s %s\n'
        printf "$row" 'NPU ID' 'Chip ID' 'Chip Logic ID' 'Chip Name'
    fi
    npu=0
    while [ $npu -lt $count ]; do
        chip=0
        while [ $chip -lt $chips ]; do
            phy=$((npu * chips + chip))
            if [ "$platform" = a3 ]; then
                printf "$row" $npu $chip $phy $phy "$name"
            else
                printf "$row" $npu $chip $phy "Ascend $name"
            fi
            chip=$((chip + 1))
        done
        if [ "$platform" = a3 ]; then
            printf "$row" $npu $chips - - Mcu
        else
            printf "$row" $npu $chips - Mcu
        fi
        npu=$((npu + 1))
    done
}

pair() { printf '\t%-30s : %s\n' "$1" "$2"; }

header() {
    pair 'NPU ID' "$card"
    pair 'Chip Count' $chips
}

per_chip() { # function: once for each chip, the id last, blocks after a blank line
    header
    each=0
    while [ $each -lt $chips ]; do
        load $((card * chips + each))
        echo
        "$1"
        pair 'Chip ID' $each
        each=$((each + 1))
    done
}

usages() {
    pair 'DDR Capacity(MB)' 0
    pair 'DDR Usage Rate(%)' 0
    pair 'DDR Hugepages Total(page)' 0
    pair 'DDR Hugepages Usage Rate(%)' 0
    pair 'HBM Capacity(MB)' $hbm
    pair 'HBM Usage Rate(%)' $((used * 100 / hbm))
    pair 'Aicore Usage Rate(%)' "$core"
    pair 'Aivector Usage Rate(%)' "$core"
    pair 'Aicpu Usage Rate(%)' 0
    pair 'Ctrlcpu Usage Rate(%)' 6
    pair 'DDR Bandwidth Usage Rate(%)' 0
    pair 'HBM Bandwidth Usage Rate(%)' 0
    pair 'NPU Utilization(%)' "$core"
    pair 'Aicube Usage Rate(%)' "$core"
}
temperature() { pair 'NPU Temperature (C)' "$temp"; }
watts() { pair 'NPU Real-time Power(W)' "$power"; }
memory() {
    pair 'DDR Capacity(MB)' 0
    pair 'DDR Clock Speed(MHz)' 0
    pair 'HBM Capacity(MB)' $hbm
    pair 'HBM Clock Speed(MHz)' 1600
    pair 'HBM Temperature(C)' "$temp"
    pair 'HBM Manufacturer ID' 0x57
}
health_word() { pair Health "$health"; }
proc_mem() {
    some=
    for file in "$npus/$((card * chips + each))/hbm"/*; do
        [ -d "/proc/${file##*/}" ] || continue
        read -r mb process <"$file" || continue
        some=1
        printf '\tProcess id:%-7d Process name:%-17s Process memory(MB):%s\n' "${file##*/}" "$process" "$mb"
    done
    [ -n "$some" ] || printf '\tNo process in device.\n'
}
common() {
    header
    each=0
    while [ $each -lt $chips ]; do
        load $((card * chips + each))
        echo
        pair 'Chip ID' $each
        pair 'Memory Usage Rate(%)' 0
        pair 'HBM Usage Rate(%)' $((used * 100 / hbm))
        pair 'Aicore Usage Rate(%)' "$core"
        pair 'Aicore Freq(MHZ)' 1800
        pair 'Aicore curFreq(MHZ)' 800
        pair 'Aicore Count' 24
        pair 'Temperature(C)' "$temp"
        [ $each != 0 ] || pair 'NPU Real-time Power(W)' "$power"
        each=$((each + 1))
    done
    echo
    pair 'Chip Name' mcu
    pair 'Temperature(C)' 38
}
board() {
    product=IT21HMDC_Bin5 device=0xD802 subsystem=0x3003 number=0x60
    [ "$platform" != a3 ] || product=IT22HMDA_2_S device=0xD803 subsystem=0x3001 number=0x71
    load $((card * chips))
    pair 'NPU ID' "$card"
    pair 'Product Name' $product
    pair Model NA
    pair Manufacturer Huawei
    pair 'Serial Number' "$(printf '%012d' $((server * 100 + card)))"
    pair 'Software Version' "$version"
    pair 'Firmware Version' 7.8.0.6.201
    pair Compatibility OK
    pair 'Board ID' $number
    pair 'PCB ID' A
    pair 'BOM ID' 1
    pair 'PCIe Bus Info' "$bus"
    pair 'Slot ID' 0
    pair 'Class ID' NA
    pair 'PCI Vendor ID' 0x19E5
    pair 'PCI Device ID' $device
    pair 'Subsystem Vendor ID' 0x19E5
    pair 'Subsystem Device ID' $subsystem
    pair 'Chip Count' $chips
}
spod() {
    phy=$((card * chips + chip))
    pair SDID $(((server << 22) | (card << 18) | (chip << 16) | phy))
    pair 'Super Pod Size' 384
    pair 'Super Pod ID' 0
    pair 'Server Index' $server
}
health_chip() {
    load $((card * chips + chip))
    pair 'Health Status' "$health"
    case $health in
    OK)
        pair 'Error Code' NA
        pair 'Error Information' NA
        ;;
    *)
        pair 'Error Code' 80E01801
        pair 'Error Information' 'node type=hbm, sensor type=Memory Sensor, event state=HBM multi bit error'
        ;;
    esac
}
bad_id() { # word
    echo "Invalid $1 id."
    [ "$1" != card ] || echo "Error parameter of -i"
    usage
    exit 255
}

fault=
[ ! -f "$faults/npu-smi.all" ] || read -r fault <"$faults/npu-smi.all"
case $fault in
hang)
    trap '' TERM INT HUP
    while :; do sleep 1000; done
    ;;
busy)
    echo "Failed to execute npu-smi info. ret is -8012."
    exit 180
    ;;
empty) exit 0 ;;
esac

case $1 in
info) shift ;;
-v)
    echo "npu-smi version: $version"
    exit 0
    ;;
*)
    usage
    [ "$1" = -h ] || exit 255
    exit 0
    ;;
esac
type= card= chip=
while [ $# -gt 0 ]; do
    case $1 in
    -t) type=$2 ;;
    -i) card=$2 ;;
    -c) chip=$2 ;;
    -l | -m | -h | watch | proc)
        type=$1
        set -- "$1" "$@"
        ;;
    *)
        echo "Error parameter of $1"
        usage
        exit 255
        ;;
    esac
    shift
    [ $# = 0 ] || shift
done
case $type in
'') table; exit 0 ;;
-l) list; exit 0 ;;
-m) mapping; exit 0 ;;
-h) usage; exit 0 ;;
watch)
    while :; do
        phy=0
        while [ $phy -lt $((count * chips)) ]; do
            load $phy
            printf '%-12s%-12s%-12s%-12s%-12s\n' $((phy / chips)) $((phy % chips)) "$power" "$temp" "$core"
            phy=$((phy + 1))
        done
        sleep 1
    done
    ;;
proc) while :; do sleep 1000; done ;;
esac
if [ -z "$card" ]; then
    echo "Error parameter of -i"
    usage
    exit 255
fi
case $card in
*[!0-9]*) bad_id card ;;
esac
[ "$card" -lt $count ] || bad_id card
[ -z "$chip" ] || case $chip in *[!0-9]*) bad_id chip ;; *) [ "$chip" -lt $chips ] || bad_id chip ;; esac
case $type in
usages) per_chip usages ;;
temp) per_chip temperature ;;
power) per_chip watts ;;
memory) per_chip memory ;;
proc-mem) per_chip proc_mem ;;
common) common ;;
board) board ;;
health)
    if [ -n "$chip" ]; then health_chip; else per_chip health_word; fi
    ;;
spod-info)
    if [ "$platform" != a3 ]; then
        echo "This device does not support querying spod-info."
        exit 0
    fi
    if [ -z "$chip" ]; then
        echo "This command must input card id and chip id."
        exit 255
    fi
    spod
    ;;
product | template-info) echo "This device does not support querying $type." ;;
*)
    echo "Error parameter of -t"
    exit 255
    ;;
esac

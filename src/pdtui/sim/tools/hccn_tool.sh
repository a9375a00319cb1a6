#!/bin/sh
# Simulated hccn_tool: answers from the files below $npus, one folder for each NPU. Builtins only.
npus='@NODE@/npu'
faults='@NODE@/fault'
platform='@PLATFORM@'

fail() { # status text
    echo "$2" >&2
    exit "$1"
}
usage() {
    echo "The total count of input parameters is wrong!" >&2
    fail 4 "Enter [ hccn_tool -h ] for more details."
}
unsupported() {
    echo "The command is not supported on this product."
    exit 13
}
get() { # name: sets $value to the first line of the NPU's file, empty without one
    value=
    [ ! -f "$npu/$1" ] || IFS= read -r value <"$npu/$1" || :
}

case $1 in
-h | --help)
    echo "usage: hccn_tool -i <device id> -<command> -g [options]"
    exit 0
    ;;
esac
[ $# -ge 3 ] || usage
[ "$1" = -i ] || fail 3 "Get unknown option!"
npu=$npus/$2
case $2 in
'' | *[!0-9]*) fail 4 "Get invalid device id." ;;
esac
[ -d "$npu" ] || fail 4 "Get invalid device id."
[ ! -f "$npu/gone" ] || fail 4 "The device is not exist!"

fault=
for file in "$faults/hccn_tool.all" "$faults/hccn_tool.$2"; do
    [ ! -f "$file" ] || read -r fault <"$file"
done
case $fault in
hang)
    trap '' TERM INT HUP
    while :; do sleep 1000; done
    ;;
busy)
    echo "hccn_tool is busy, please try again."
    exit 11
    ;;
empty) exit 0 ;;
esac

command=$3
case $4 in
-g) ;;
-s | -c | -t) fail 12 "permission denied: pls check this cmd run permission." ;;
*) usage ;;
esac
case $command in
-link)
    get link
    echo "link status: $value"
    ;;
-net_health)
    get net_health
    echo "net health status: $value"
    ;;
-ip)
    get ip
    [ -n "$value" ] || fail 13 "Get ipconf failed, because no ip was preset there!"
    echo "ipaddr:$value"
    get netmask
    echo "netmask:$value"
    ;;
-gateway)
    get gateway
    [ -n "$value" ] || fail 2 "Get gateway failed, because no gateway was preset there!"
    echo "default gateway:$value, Iface:eth$2"
    ;;
-netdetect)
    get netdetect
    echo "netdetect address: ${value:-0.0.0.0}"
    ;;
-vnic)
    [ "$platform" = a3 ] || unsupported
    get vnic
    echo "vnic link status: $value"
    get vnic_ip
    echo "vnic ipaddr: $value"
    echo "vnic netmask: 255.0.0.0"
    ;;
-tls)
    get tls
    echo "dev_id:$2, tls switch[$value](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset), tls alarm time threshold[60]days"
    ;;
-lldp)
    get lldp
    if [ -n "$value" ]; then
        printf 'Chassis ID TLV\n\tMAC: 00:00:5e:00:53:01\nPort ID TLV\n\tIfname: %s\n' "$value"
        printf 'System Name TLV\n\tleaf-1\nManagement Address TLV\n\tIPv4: 10.0.0.254\n'
        printf 'Maximum Frame Size TLV\n\t9216\nEnd of LLDPDU TLV\n\n'
    fi
    ;;
-link_stat)
    up=0 down=0 records=
    while IFS= read -r line; do
        case $line in
        *DOWN) down=$((down + 1)) ;;
        *) up=$((up + 1)) ;;
        esac
        records="[devid $2]    $line
$records"
    done <"$npu/link_stat"
    echo "[devid $2]current time        : $(LC_ALL=C date '+%a %b %e %H:%M:%S %Y')"
    echo "[devid $2]link up count       : $up"
    echo "[devid $2]link down count     : $down"
    echo "[devid $2]link change records :"
    printf %s "$records"
    ;;
-ping)
    [ "$5" = address ] && [ -n "$6" ] || usage
    get link
    [ "$value" = UP ] || fail 22 "Execute failed: Link status is down."
    echo "device $2 PING $6"
    for seq in 0 1 2; do echo "recv seq=$seq,time=0.04${seq}000ms"; done
    echo "3 packets transmitted, 3 received, 0.00% packet loss"
    ;;
-hccs_ping)
    [ "$platform" = a3 ] || unsupported
    [ "$5" = address ] && [ -n "$6" ] || usage
    get vnic
    received=3 loss=0.00
    [ "$value" = UP ] || received=0 loss=100.00
    printf 'device %s PING %s\n\n' "$2" "$6"
    for seq in 0 1 2; do
        if [ "$received" = 3 ]; then
            printf 'This pkt ping success!\nrecv seq %s, time = 21.%s00us, L1 plane check result = 0x0\n\n' $seq $seq
        else
            printf 'This pkt check recv msg fail!\n\n'
        fi
    done
    echo "3 packets transmitted, $received received, $loss% packets loss"
    if [ "$received" = 3 ]; then
        printf 'max time 21.200us\nmin time 21.000us\naverage time 21.100us\nTP95 time 21.200us\n'
    else
        printf 'max time 0.000us\nmin time 0.000us\naverage time 0.000us\nTP95 time 0.000us\n'
    fi
    echo "Cmd executed successfully!"
    ;;
-fec) echo "fec mode: rs FEC mode" ;;
-mtu) echo "mtu:8192" ;;
-process) echo "device hccp process: exist" ;;
-speed)
    get link
    if [ "$value" = UP ]; then echo "Speed: 200000 Mb/s"; else echo "Speed: Unknown!"; fi
    ;;
*)
    echo "Get invalid major cmd type!" >&2
    fail 1 "Enter [ hccn_tool -h ] for more details."
    ;;
esac

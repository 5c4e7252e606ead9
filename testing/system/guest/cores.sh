# towpath cores in a guest of four CPUs with a card of four queues: a real RSS table, real interrupts, control groups of version 2.
# The argument is the path of towpath. The test compares every line that begins with "guest:".
towpath=$1
export TOWPATH_CORES_JOURNAL=/run/journal PATH=/usr/sbin:/usr/bin:/sbin:/bin
ip link set lo up; ip addr add 198.18.1.2/24 dev eth0; ip link set eth0 up
ethtool -L eth0 combined 4

say() { echo "guest: $*"; }
# The number of table entries of each queue.
table() { ethtool -x eth0 | awk '/^ *[0-9]+:/ {for (i = 2; i <= NF; i++) n[$i]++} END {for (q = 0; q < 4; q++) printf "%d ", n[q]}'; }
irqs() { grep -oE "^ *[0-9]+:.*virtio[0-9]+-(in|out)put\.[0-9]+" /proc/interrupts | sed -E 's/^ *([0-9]+):.*-(in|out)put\.([0-9]+)/\1 \2 \3/'; }
affinities() { irqs | while read -r irq way queue; do printf '%s%s=%s ' "$way" "$queue" "$(cat /proc/irq/$irq/smp_affinity_list)"; done; }
effective() { irqs | while read -r irq way queue; do [ "$way" = in ] && printf '%s=%s ' "$queue" "$(cat /proc/irq/$irq/effective_affinity_list)"; done; }
packets() { ethtool -S eth0 | awk '/rx_queue_[0-9]+_packets|rx[0-9]+_packets/ {printf "%s ", $2}'; }
groups() { (cd /sys/fs/cgroup && echo */ "$(cat cpuset.cpus.effective)"); }
state() { echo "$(table)| $(affinities)| $(cat /sys/class/net/eth0/queues/tx-*/xps_cpus | tr '\n' ' ')| $(allowed)| $(groups)"; }
wait_for() { for _ in $(seq 300); do eval "$1" && return 0; sleep 0.2; done; say "never: $1"; }

echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/app
sleep 1000 & echo $! > /sys/fs/cgroup/app/cgroup.procs
allowed() { grep Cpus_allowed_list /proc/$(cat /sys/fs/cgroup/app/cgroup.procs)/status | cut -f2; }

before=$(state)
say "release $(uname -r | cut -d. -f1-2)"
say "before $(table)"
$towpath cores plan --interface eth0 --cpus 2 --json | sed 's/^/guest: plan /'
$towpath cores enforce --interface eth0 --cpus 2 --xps --cgroup /app > /dev/null &
enforce=$!
wait_for '[ "$(table)" = "64 64 0 0 " ]'
wait_for '[ -n "$(cat /sys/fs/cgroup/app/cpuset.cpus)" ]'
sleep 2
say "two $(table)| $(affinities)| $(allowed)"
count=$(packets)
wait_for '[ $(($(packets | cut -d" " -f2) - $(echo $count | cut -d" " -f2))) -gt 100 ]'
say "packets $(for queue in 1 2 3 4; do set -- $(packets); after=${!queue}; set -- $count; printf '%s ' $((after - ${!queue})); done)"
say "effective $(effective)"
# When the number of queues changes, the driver resets interrupts and XPS, but not the table.
ethtool -L eth0 combined 2; ethtool -L eth0 combined 4
wait_for '[ "$(affinities | tr " " "\n" | grep -c "=[12]$")" = 8 ]'
sleep 2
say "again $(table)| $(affinities)"
kill -TERM $enforce; wait $enforce
say "after $([ "$(state)" = "$before" ] && echo same || echo "$before is $(state)")"
# Both processes are killed, and `restore` puts everything back.
$towpath cores enforce --interface eth0 --cpus 1 --xps --cgroup /app > /dev/null &
enforce=$!
wait_for '[ "$(table)" = "128 0 0 0 " ]'
kill -STOP $enforce; pkill -KILL -P $enforce; kill -KILL $enforce; wait $enforce 2>/dev/null
say "killed $(table)"
$towpath cores restore
say "restored $([ "$(state)" = "$before" ] && echo same || echo "$before is $(state)")"
# A partition: groups that were not named leave its CPUs too.
card=/sys/fs/cgroup/towpath-rxcpus
mkdir /sys/fs/cgroup/other
sleep 1000 & echo $! > /sys/fs/cgroup/other/cgroup.procs
before=$(state)
partition() { echo "$(cat $card/cpuset.cpus) $(cat $card/cpuset.cpus.partition) others $(cat /sys/fs/cgroup/cpuset.cpus.effective) $(cat /sys/fs/cgroup/app/cpuset.cpus.effective) $(cat /sys/fs/cgroup/other/cpuset.cpus.effective)"; }
enforce() { $towpath cores enforce --interface eth0 --cgroup /app "$@" > /run/log 2>&1 & enforce=$!; }
for kind in root isolated; do
    enforce --cpus 2 --partition $kind
    wait_for '[ "$(cat $card/cpuset.cpus.partition)" = $kind ] 2>/dev/null'
    say "partition-$kind $(partition)"
    count=$(packets)
    wait_for '[ $(($(packets | cut -d" " -f2) - $(echo $count | cut -d" " -f2))) -gt 100 ]'
    say "effective-$kind $(effective)"
    if [ $kind = root ]; then
        # Another group gets all CPUs, which spoils the partition, and loses them again, which mends it. `enforce` also ends well
        # while the partition is spoilt.
        pkill -STOP -P $enforce
        echo 0-3 > /sys/fs/cgroup/other/cpuset.cpus
        say "spoilt $(cat $card/cpuset.cpus.partition)"
        echo 0,3 > /sys/fs/cgroup/other/cpuset.cpus
        pkill -CONT -P $enforce
        wait_for '[ "$(cat $card/cpuset.cpus.partition)" = root ]'
        say "mended $(partition)"
        echo 0-3 > /sys/fs/cgroup/other/cpuset.cpus
        kill -TERM $enforce; wait $enforce
        say "ended-$kind $([ "$(state)" = "$before" ] && echo same || echo "$before is $(state)")"
        echo 0,3 > /sys/fs/cgroup/other/cpuset.cpus
    else
        kill -STOP $enforce; pkill -KILL -P $enforce; kill -KILL $enforce; wait $enforce 2>/dev/null
        say "left $(partition)"
        $towpath cores restore > /run/log
        say "ended-$kind $([ "$(state)" = "$before" ] && echo same || echo "$before is $(state)")"
    fi
done
# If another group has one of the CPUs, nothing is changed, and the kernel's reason is printed.
echo 0-1 > /sys/fs/cgroup/other/cpuset.cpus
$towpath cores enforce --interface eth0 --cpus 2 --partition root > /run/log 2>&1
say "refused $? $(grep -o 'root invalid.*)\?"; everything is as it was' /run/log)"
say "untouched $([ "$(state)" = "$before" ] && echo same || echo "$before is $(state)")"
# Older kernels forget to which CPUs threads are pinned, which the plan must mention.
taskset -c 3 sleep 1000 & pinned=$!
sleep 1
echo 0,3 > /sys/fs/cgroup/other/cpuset.cpus
$towpath cores plan --interface eth0 --cpus 2 --partition root 2>&1 | grep -c "processes {$pinned} are pinned" | sed 's/^/guest: pinned /'

-- Bills that are on the ledger need not wait any more. ARGV: prefix, ids. Returns how many there were
local n = 0
for i = 2, #ARGV do n = n + redis.call('HDEL', P .. 'bills', ARGV[i]) end
return n

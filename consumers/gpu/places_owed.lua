-- Bills that wait for the ledger. ARGV: prefix. Returns {id, record, ...}
return redis.call('HGETALL', P .. 'bills')

-- Whether this is the one who may call the waker now. ARGV: prefix, ms until it may be called again, and 'again' from who
-- was that one and did not reach it. Returns 1 or 0
if ARGV[3] == 'again' then return redis.call('PEXPIRE', P .. 'woken', ARGV[2]) end
return redis.call('SET', P .. 'woken', '1', 'NX', 'PX', ARGV[2]) and 1 or 0
